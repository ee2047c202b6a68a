#!lua flags=allow-oom
-- Delete shared signals that were kept for long enough. ARGV: milliseconds to keep, limit. Returns how many.
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[1]))
local old = redis.call('ZRANGEBYSCORE', ns .. 'shared_at', '-inf', before, 'LIMIT', 0, ARGV[2])
for _, key in ipairs(old) do
  redis.call('HDEL', ns .. 'shared', key)
  redis.call('ZREM', ns .. 'shared_keys', key)
  redis.call('ZREM', ns .. 'shared_at', key)
end
return #old
