#!lua flags=allow-oom
-- processing, unchanged: the report is stored under its lease. ARGV: id, attempt, worker and the report as JSON of each.
-- Answers of each: 1 if it landed.
local landed = {}
for i = 1, #ARGV, 4 do
  local id, said = ARGV[i], cjson.decode(ARGV[i + 3])
  local f = redis.call('HMGET', job(id), 'state', 'attempt', 'worker_id', 'checkpoint', 'stale_after')
  if f[1] == 'processing' and f[2] == ARGV[i + 1] and f[3] == ARGV[i + 2] then
    if said.log then
      redis.call('HSET', ns .. 'log:' .. id, f[2], said.log)
      said.log = nil
    end
    for field, value in pairs(said) do redis.call('HSET', job(id), field, value) end
    if said.checkpoint and said.checkpoint ~= f[4] then redis.call('HDEL', job(id), 'crashes') end
    redis.call('HSET', job(id), 'last_activity_at', now)
    if f[5] then redis.call('ZADD', ns .. 'stale', now + tonumber(f[5]), id) end
    landed[#landed + 1] = 1
  else
    landed[#landed + 1] = 0
  end
end
return landed
