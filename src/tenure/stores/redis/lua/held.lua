#!lua flags=no-writes
-- The jobs of a worker, longest silent first. ARGV: worker. Returns per job the same as `lost`.
local answers = {}
for n, id in ipairs(redis.call('HKEYS', ns .. 'processing:' .. ARGV[1])) do
  answers[n] = to_take(id, ARGV[1], 'crash', silent_since(id))
end
table.sort(answers, function(a, b) return a[5] < b[5] or (a[5] == b[5] and a[1] < b[1]) end)
return answers
