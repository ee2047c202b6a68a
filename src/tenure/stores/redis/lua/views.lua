#!lua flags=no-writes
-- Jobs for people. ARGV: ids. Returns per job: all its fields, and when it ended.
local ended, answers = {completed = true, dead = true, cancelled = true}, {}
for n, id in ipairs(ARGV) do
  local state = redis.call('HGET', job(id), 'state')
  answers[n] = {redis.call('HGETALL', job(id)), ended[state] and redis.call('ZSCORE', ns .. state, id)}
end
return answers
