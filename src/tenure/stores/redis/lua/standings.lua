#!lua flags=no-writes
-- Schedules and their open ticks, oldest first. ARGV: names. Answers of each: its body, and those of the ticks; or
-- nothing.
local answers = {}
for n, name in ipairs(ARGV) do
  local body, ticks = redis.call('HGET', ns .. 'schedule:' .. name, 'body'), {}
  local open = redis.call('ZRANGE', ns .. 'open:' .. name, 0, -1)
  for first = 1, #open, 1000 do
    local some = redis.call('HMGET', ns .. 'tick:' .. name, unpack(open, first, math.min(first + 999, #open)))
    for _, tick in ipairs(some) do ticks[#ticks + 1] = tick end
  end
  answers[n] = body and {body, ticks}
end
return answers
