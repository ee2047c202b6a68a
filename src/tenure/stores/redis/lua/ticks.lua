#!lua flags=no-writes
-- The ticks of a schedule, newest first. ARGV: its name, the highest instant as ZREVRANGEBYSCORE takes it, how many to
-- skip, how many to return. Returns MS|CAUSE and body per tick.
local answers = {}
local found = redis.call('ZREVRANGEBYSCORE', ns .. 'ticks:' .. ARGV[1], ARGV[2], '-inf', 'LIMIT', ARGV[3], ARGV[4])
for _, tick in ipairs(found) do
  answers[#answers + 1] = {tick, redis.call('HGET', ns .. 'tick:' .. ARGV[1], tick)}
end
return answers
