#!lua flags=allow-oom
-- processing → completed, under the lease. ARGV: worker, then id, attempt and result of each. Answers of those refused:
-- their place, and what stands.
local worker, done, completed, stale, refused = ARGV[1], {}, {}, {}, {}
for i = 2, #ARGV, 3 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  local key = job(id)
  local f = redis.call('HMGET', key, 'state', 'attempt', 'worker_id', 'unique', 'more')
  if f[1] == 'processing' and f[2] == attempt and f[3] == worker then
    redis.call('HSET', key, 'state', 'completed', 'result', ARGV[i + 2], 'ended_at', now)
    if f[4] then redis.call('HDEL', ns .. 'unique', f[4]) end
    if f[5] then stale[#stale + 1] = id end
    done[#done + 1] = id
    completed[#completed + 1], completed[#completed + 2] = now, id
  else
    refused[#refused + 1] = {(i - 2) / 3, standing(id, attempt)}
  end
end
if #done > 0 then
  redis.call('ZADD', ns .. 'completed', unpack(completed))
  let_go(worker, done)
  if #stale > 0 then redis.call('ZREM', ns .. 'stale', unpack(stale)) end
end
return refused
