#!lua flags=allow-oom
-- Delete ended jobs that were kept for long enough; those that others need stay, with an ask to check if they still do.
-- ARGV: state, milliseconds to keep, how many to examine. It goes on behind those that it left the last time, and begins
-- again after the last. Returns how many it examined, how many it deleted, and whether there are more.
local key, cursor = ns .. ARGV[1], ns .. 'pruned'
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[2]))
-- The time of end to go on from, and how many jobs that ended just then to pass over.
local from, left = (redis.call('HGET', cursor, ARGV[1]) or '-inf 0'):match('^(%S+) (%d+)$')
left = tonumber(left)
local old = redis.call('ZRANGEBYSCORE', key, from, before, 'WITHSCORES', 'LIMIT', left, ARGV[3])
local gone, examined, work = {}, 0, 0
for n = 1, #old, 2 do
  if work >= 200 then break end
  local id, ended = old[n], old[n + 1]
  local was_linked = redis.call('HGET', job(id), 'linked')
  examined, work = examined + 1, work + (was_linked and 3 or 1)
  if was_linked == '1' then
    ask(id)
    left = ended == from and left + 1 or 1
    from = ended
  else
    forget(id)
    gone[#gone + 1] = id
  end
end
if #gone > 0 then redis.call('ZREM', key, unpack(gone)) end
local more = examined < #old / 2 or examined == tonumber(ARGV[3])
if more then
  redis.call('HSET', cursor, ARGV[1], from .. ' ' .. left)
else
  redis.call('HDEL', cursor, ARGV[1])
end
return {examined, #gone, more and 1 or 0}
