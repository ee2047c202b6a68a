#!lua flags=allow-oom
-- Delete ended jobs that were kept for long enough. ARGV: state, milliseconds to keep, limit. Returns how many.
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[2]))
local old = redis.call('ZRANGEBYSCORE', ns .. ARGV[1], '-inf', before, 'LIMIT', 0, ARGV[3])
for _, id in ipairs(old) do forget(id) end
if #old > 0 then redis.call('ZREM', ns .. ARGV[1], unpack(old)) end
return #old
