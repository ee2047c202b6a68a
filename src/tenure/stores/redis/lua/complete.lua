#!lua flags=allow-oom
-- processing → completed, under the lease. ARGV: worker, then id, attempt and result of each. Answers of those refused:
-- their place, and what stands.
local worker, done, completed, counts, refused = ARGV[1], {}, {}, {}, {}
for i = 2, #ARGV, 3 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  local f = redis.call('HMGET', job(id), 'state', 'attempt', 'worker_id', 'queue', 'unique')
  if f[1] == 'processing' and f[2] == attempt and f[3] == worker then
    redis.call('HSET', job(id), 'state', 'completed', 'result', ARGV[i + 2], 'ended_at', now)
    if f[5] then redis.call('HDEL', ns .. 'unique', f[5]) end
    done[#done + 1] = id
    completed[#completed + 1], completed[#completed + 2] = now, id
    counts[f[4]] = (counts[f[4]] or 0) + 1
  else
    refused[#refused + 1] = {(i - 2) / 3, standing(id, attempt)}
  end
end
if #done > 0 then
  redis.call('ZREM', ns .. 'processing', unpack(done))
  redis.call('ZREM', ns .. 'stale', unpack(done))
  redis.call('ZADD', ns .. 'completed', unpack(completed))
  let_go(worker, done)
  for queue, number in pairs(counts) do count('processing', queue, -number) end
end
return refused
