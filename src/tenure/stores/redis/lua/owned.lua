#!lua flags=no-writes
-- Every lease of a worker. ARGV: worker. Returns the same as `claim`, and the reason of a requested cancel.
local answers = {}
for _, id in ipairs(redis.call('HKEYS', ns .. 'processing:' .. ARGV[1])) do
  local f = redis.call('HMGET', job(id), 'attempt', 'facts', 'payload', 'enqueued_at', 'cancel_reason')
  answers[#answers + 1] = {id, f[1], f[2], f[3], f[4], (past(job(id), f[1])), f[5]}
end
return answers
