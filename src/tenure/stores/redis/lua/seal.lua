#!lua
-- All parts of a call are staged: from now on all of it will be stored, whatever becomes of its caller. ARGV: the call,
-- and how many values its parts have. Returns 0 if some are missing: an hour has passed.
local key = ns .. 'staged:' .. ARGV[1]
if redis.call('LLEN', key) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', ns .. 'sealed', now, ARGV[1])
redis.call('PERSIST', key)
ring('due', '')
return 1
