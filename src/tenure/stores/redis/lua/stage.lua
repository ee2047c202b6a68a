#!lua
-- Keep a part of a call that is too large for one step; no reader sees it, and it expires after an hour. ARGV: the
-- call, then the arguments of `store` in waits.lua. Returns nothing; or a job or a flow, and why it is
-- refused.
local key, call = ns .. 'staged:' .. ARGV[1], table.remove(ARGV, 1)
local why = refused(ARGV)
if why then return why end
redis.call('RPUSH', key, #ARGV)
for first = 1, #ARGV, 1000 do
  redis.call('RPUSH', key, unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('EXPIRE', key, 3600)
return false
