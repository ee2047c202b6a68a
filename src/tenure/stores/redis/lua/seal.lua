#!lua
-- All parts of a call are staged: from now on all of it will be stored, whatever becomes of its caller. ARGV: the call,
-- how many values its parts have, then the id and the name of each flow that only one call may make. Returns 0 if some
-- values are missing: an hour has passed; or a flow that was made before, and why nothing is stored.
local key = ns .. 'staged:' .. ARGV[1]
if redis.call('LLEN', key) ~= tonumber(ARGV[2]) then return 0 end
for i = 3, #ARGV, 2 do
  if redis.call('ZSCORE', ns .. 'flows', ARGV[i]) then
    redis.call('UNLINK', key)
    return {ARGV[i], 'made'}
  end
end
for i = 3, #ARGV, 2 do
  redis.call('ZADD', ns .. 'flows', now, ARGV[i])
  redis.call('HSET', ns .. 'flow_names', ARGV[i], ARGV[i + 1])
end
redis.call('ZADD', ns .. 'sealed', now, ARGV[1])
redis.call('PERSIST', key)
ring('due', '')
return 1
