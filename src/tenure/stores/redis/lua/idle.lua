#!lua flags=allow-oom
-- What `give` has to look at again: the keys under which a queue was passed over that is served now, and those that
-- no job uses and whose buckets are full now. ARGV: how many keys. Returns whether a queue is served again, and whether
-- there are more.
local room, asked, keys = tonumber(ARGV[1]), 0, limited()
for _, queue in ipairs(redis.call('SMEMBERS', ns .. 'idle')) do
  if room <= 0 then break end
  if served(queue) then
    for _, key in ipairs(redis.call('SPOP', ns .. 'idle:' .. queue, room)) do
      asked, room = 1, room - 1
      keys.look({key})
    end
    if redis.call('EXISTS', ns .. 'idle:' .. queue) == 0 then redis.call('SREM', ns .. 'idle', queue) end
  end
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'key_fades', '-inf', now, 'LIMIT', 0, math.max(room, 0))) do
  redis.call('ZREM', ns .. 'key_fades', key)
  keys.look({key})
end
return {asked, room <= 0 and 1 or 0}
