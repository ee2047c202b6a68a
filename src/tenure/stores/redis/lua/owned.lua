#!lua flags=no-writes
-- Every lease of a worker. ARGV: worker, then id and attempt per lease that the caller knows. Returns per lease: id,
-- attempt, the reason of a requested cancel, and for one that the caller does not know the rest of what `claim` returns.
local answers, known = {}, {}
for i = 2, #ARGV, 2 do known[ARGV[i]] = ARGV[i + 1] end
for _, id in ipairs(redis.call('HKEYS', ns .. 'processing:' .. ARGV[1])) do
  local f = redis.call('HMGET', job(id), 'attempt', 'cancel_reason')
  if known[id] == f[1] then
    answers[#answers + 1] = {id, f[1], f[2]}
  else
    local g = redis.call('HMGET', job(id), 'facts', 'payload', 'enqueued_at')
    answers[#answers + 1] = {id, f[1], f[2], g[1], g[2], g[3], (past(job(id), f[1]))}
  end
end
return answers
