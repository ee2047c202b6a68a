#!lua flags=no-writes
-- The jobs of a worker, longest silent first. ARGV: worker. Returns per job the same as `lost`.
local answers = {}
for n, id in ipairs(redis.call('HKEYS', ns .. 'processing:' .. ARGV[1])) do
  local f = redis.call('HMGET', job(id), 'attempt', 'facts', 'failures', 'crashes', 'crashes_total', 'cancel_reason')
  local since = silent_since(id)
  answers[n] = {id, tonumber(f[1]), ARGV[1], 'crash', since, f[2], f[3] or '0', f[4] or '0', f[5] or '0', f[6]}
end
table.sort(answers, function(a, b) return a[5] < b[5] or (a[5] == b[5] and a[1] < b[1]) end)
return answers
