#!lua flags=allow-oom
-- Delete closed ticks that were decided long ago, and expired notes. ARGV: milliseconds to keep a tick, limit. Returns
-- how many were examined, and how many were deleted: the ticks of a deleted schedule no longer exist.
local limit, gone = tonumber(ARGV[2]), 0
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[1]))
local old = redis.call('ZRANGEBYSCORE', ns .. 'decided', '-inf', before, 'LIMIT', 0, limit)
for _, run in ipairs(old) do
  local tick, name = split(run)
  gone = gone + redis.call('HDEL', ns .. 'tick:' .. name, tick)
  redis.call('ZREM', ns .. 'ticks:' .. name, tick)
  redis.call('ZREM', ns .. 'decided', run)
end
local over = redis.call('ZRANGEBYSCORE', ns .. 'fading', '-inf', now, 'LIMIT', 0, limit - #old)
for _, key in ipairs(over) do forget_note(key) end
return {#old + #over, gone + #over}
