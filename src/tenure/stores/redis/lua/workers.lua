#!lua flags=no-writes
-- Workers: all fields of each, the end of its lease, the number of its jobs. ARGV: whether to include dead ones.
local ids, answers = redis.call('ZRANGE', ns .. 'alive', 0, -1), {}
if ARGV[1] == '1' then
  for _, id in ipairs(redis.call('ZRANGE', ns .. 'died', 0, -1)) do ids[#ids + 1] = id end
end
for n, id in ipairs(ids) do
  answers[n] = {redis.call('HGETALL', ns .. 'worker:' .. id), redis.call('ZSCORE', ns .. 'alive', id),
    redis.call('HLEN', ns .. 'processing:' .. id)}
end
return answers
