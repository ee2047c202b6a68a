#!lua flags=no-writes
-- Schedules and their open ticks, oldest first. ARGV: names. Returns per schedule: its body, those of the first 100
-- ticks, and the number of ticks; or nothing.
local answers = {}
for n, name in ipairs(ARGV) do
  local body, ticks = redis.call('HGET', ns .. 'schedule:' .. name, 'body'), {}
  local open = redis.call('ZRANGE', ns .. 'open:' .. name, 0, 99)
  if #open > 0 then ticks = redis.call('HMGET', ns .. 'tick:' .. name, unpack(open)) end
  answers[n] = body and {body, ticks, redis.call('ZCARD', ns .. 'open:' .. name)}
end
return answers
