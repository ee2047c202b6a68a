#!lua flags=no-writes
-- Schedules whose time has come, earliest first, and those with an open run whose job has ended or is gone: these can
-- wait while there are more of the first. ARGV: how many of the first (0: go on with the others), and where to go on
-- among the open runs. Answers the time, the milliseconds until the next one is due or nothing, where to go on, and
-- their names.
local names, live = {}, {scheduled = true, queued = true, processing = true}
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
