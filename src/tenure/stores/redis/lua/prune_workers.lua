#!lua flags=allow-oom
-- Workers that died so long ago that nobody asks for them. ARGV: milliseconds to keep.
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[1]))
local old = redis.call('ZRANGEBYSCORE', ns .. 'died', '-inf', before, 'LIMIT', 0, 200)
for _, worker in ipairs(old) do
  redis.call('UNLINK', ns .. 'worker:' .. worker)
  redis.call('ZREM', ns .. 'died', worker)
end
return #old
