#!lua flags=no-writes
-- The leases of a worker on these jobs. ARGV: worker, then ids. Returns per job the same as `lost`.
local answers = {}
for n = 2, #ARGV do
  if redis.call('HEXISTS', ns .. 'processing:' .. ARGV[1], ARGV[n]) == 1 then
    answers[#answers + 1] = to_take(ARGV[n], ARGV[1], 'crash', silent_since(ARGV[n]))
  end
end
return answers
