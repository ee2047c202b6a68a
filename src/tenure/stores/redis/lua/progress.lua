#!lua flags=allow-oom
-- processing, state unchanged: store a report under its lease. ARGV: id, attempt, worker and JSON per report.
-- Returns per report 1 if it landed.
local landed = {}
for i = 1, #ARGV, 4 do
  local id, report = ARGV[i], cjson.decode(ARGV[i + 3])
  local f = redis.call('HMGET', job(id), 'state', 'attempt', 'worker_id', 'checkpoint', 'stale_after')
  if f[1] == 'processing' and f[2] == ARGV[i + 1] and f[3] == ARGV[i + 2] then
    if report.log then
      redis.call('HSET', ns .. 'log:' .. id, f[2], report.log)
      report.log = nil
    end
    for field, value in pairs(report) do redis.call('HSET', job(id), field, value) end
    if report.checkpoint and report.checkpoint ~= f[4] then redis.call('HDEL', job(id), 'crashes') end
    redis.call('HSET', job(id), 'last_activity_at', now)
    if f[5] then redis.call('ZADD', ns .. 'stale', now + tonumber(f[5]), id) end
    landed[#landed + 1] = 1
  else
    landed[#landed + 1] = 0
  end
end
return landed
