#!lua flags=no-writes
-- Jobs as people see them. ARGV: ids. Answers all fields of each.
local answers = {}
for n, id in ipairs(ARGV) do answers[n] = redis.call('HGETALL', job(id)) end
return answers
