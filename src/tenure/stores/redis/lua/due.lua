#!lua flags=no-writes
-- Schedules whose time has come, earliest first, and those with an open run whose job has ended or is gone. ARGV: how
-- many of the first, and where to go on among the open runs. Answers the time, the milliseconds until the next one is due
-- or nothing, where to go on, and their names.
local names, live = {}, {scheduled = true, queued = true, processing = true}
if ARGV[1] ~= '0' then names = redis.call('ZRANGEBYSCORE', ns .. 'due', '-inf', now, 'LIMIT', 0, ARGV[1]) end
local later = redis.call('ZRANGEBYSCORE', ns .. 'due', '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local page = redis.call('HSCAN', ns .. 'open', ARGV[2], 'COUNT', 500)
local ended = {}
for n = 1, #page[2], 2 do
  if not live[redis.call('HGET', job(page[2][n + 1]), 'state')] then
    local _, name = split(page[2][n])
    ended[#ended + 1] = name
  end
end
return {now, later[2] and tonumber(later[2]) - now or false, page[1], names, ended}
