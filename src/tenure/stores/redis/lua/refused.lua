#!lua flags=allow-oom
-- For people: a write under this lease did not land. ARGV: id, attempt, worker and why of each; the first word stands.
for i = 1, #ARGV, 4 do
  local key = ns .. 'attempts:' .. ARGV[i]
  local told = redis.call('HGET', key, ARGV[i + 1])
  local row = told and cjson.decode(told)
  if row and row.worker == ARGV[i + 2] and not row.evidence.refused then
    row.evidence.refused = ARGV[i + 3]
    redis.call('HSET', key, ARGV[i + 1], cjson.encode(row))
  end
end
