#!lua flags=no-writes
-- The closed ticks of all schedules, the last decided first. ARGV: from and until when, in milliseconds, how many to skip,
-- how many to examine. Returns how many were examined, and their bodies: the ticks of a deleted schedule no longer exist.
local found = redis.call('ZREVRANGEBYSCORE', ns .. 'decided', ARGV[2], ARGV[1], 'LIMIT', ARGV[3], ARGV[4])
local bodies = {}
for _, run in ipairs(found) do
  local tick, name = split(run)
  local body = redis.call('HGET', ns .. 'tick:' .. name, tick)
  if body then bodies[#bodies + 1] = body end
end
return {#found, bodies}
