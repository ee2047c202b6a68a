#!lua flags=no-writes
-- Every lease held in a worker's name. ARGV: worker. Answers as `claim` does, and the reason of a cancel asked.
local answers = {}
for _, id in ipairs(redis.call('SMEMBERS', ns .. 'processing:' .. ARGV[1])) do
  local f = redis.call('HMGET', job(id), 'attempt', 'facts', 'payload', 'failures', 'crashes', 'checkpoint',
    'enqueued_at', 'expires_at', 'cancel_reason')
  local late = f[1] == '1' and f[8] and tonumber(f[8]) < now
  answers[#answers + 1] = {id, tonumber(f[1]), f[2], f[3], f[4] or '0', f[5] or '0', f[6], f[7], late and 1 or 0, f[9]}
end
return answers
