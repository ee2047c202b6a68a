#!lua flags=no-writes
-- What became of a schedule's ticks, newest first. ARGV: its name, the highest instant as ZREVRANGEBYSCORE takes it, how
-- many to pass over, how many to answer. Answers MS|CAUSE and body of each.
local answers = {}
local found = redis.call('ZREVRANGEBYSCORE', ns .. 'ticks:' .. ARGV[1], ARGV[2], '-inf', 'LIMIT', ARGV[3], ARGV[4])
for _, tick in ipairs(found) do
  answers[#answers + 1] = {tick, redis.call('HGET', ns .. 'tick:' .. ARGV[1], tick)}
end
return answers
