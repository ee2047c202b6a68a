#!lua flags=allow-oom
-- For diagnosis: a write under this lease did not land. ARGV: id, attempt, worker and reason each; the first one is
-- kept.
for i = 1, #ARGV, 4 do
  local key = ns .. 'attempts:' .. ARGV[i]
  local stored = redis.call('HGET', key, ARGV[i + 1])
  local row = stored and cjson.decode(stored)
  if row and row.worker == ARGV[i + 2] and not row.evidence.refused then
    row.evidence.refused = ARGV[i + 3]
    redis.call('HSET', key, ARGV[i + 1], cjson.encode(row))
  end
end
