#!lua flags=no-writes
-- Jobs as people see them. ARGV: ids. Answers of each: all its fields, and when its owner last spoke.
local answers = {}
for n, id in ipairs(ARGV) do
  answers[n] = {redis.call('HGETALL', job(id)), redis.call('ZSCORE', ns .. 'processing', id)}
end
return answers
