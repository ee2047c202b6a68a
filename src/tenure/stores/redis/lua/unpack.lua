#!lua flags=allow-oom
-- Store the next part of a sealed call. ARGV: the call. Its answers are kept for its caller. Returns 0 if none was left.
local call = ARGV[1]
local staged, answers = ns .. 'staged:' .. call, ns .. 'answers:' .. call
if not redis.call('ZSCORE', ns .. 'sealed', call) then return 0 end
local number = tonumber(redis.call('LINDEX', staged, 0))
local found = store(redis.call('LRANGE', staged, 1, number), call)
redis.call('LTRIM', staged, number + 1, -1)
if #found > 0 then redis.call('RPUSH', answers, cjson.encode(found)) end
if redis.call('EXISTS', staged) == 0 then
  redis.call('ZREM', ns .. 'sealed', call)
  redis.call('UNLINK', ns .. 'stands:' .. call)
  redis.call('EXPIRE', answers, 3600)
end
return 1
