#!lua flags=no-writes
-- Schedules that are due, earliest first, and those with an open run whose job has ended or was deleted: these wait
-- while there are more due ones. ARGV: how many due ones (0: continue with the others), and the cursor among the open
-- runs. Returns the time, the milliseconds until the next schedule is due or nothing, the cursor, and the names.
local names, live = {}, {waiting = true, scheduled = true, queued = true, processing = true}
if ARGV[1] ~= '0' then names = redis.call('ZRANGEBYSCORE', ns .. 'due', '-inf', now, 'LIMIT', 0, ARGV[1]) end
local later = redis.call('ZRANGEBYSCORE', ns .. 'due', '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local cursor, ended = '0', {}
if ARGV[1] == '0' or #names < tonumber(ARGV[1]) then
  local page = redis.call('HSCAN', ns .. 'open', ARGV[2], 'COUNT', 500)
  cursor = page[1]
  for n = 1, #page[2], 2 do
    if not live[redis.call('HGET', job(page[2][n + 1]), 'state')] then
      local _, name = split(page[2][n])
      ended[#ended + 1] = name
    end
  end
end
return {now, later[2] and tonumber(later[2]) - now or false, cursor, names, ended}
