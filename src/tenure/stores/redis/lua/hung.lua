#!lua flags=no-writes
-- Jobs of these workers that have been silent for longer than they may. ARGV: workers. Answers of each: id, attempt,
-- worker, facts, how long it has been silent.
local asked, answers = {}, {}
for _, worker in ipairs(ARGV) do asked[worker] = true end
local before = '(' .. string.format('%.0f', now)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'stale', '-inf', before, 'LIMIT', 0, 1000)) do
  local f = redis.call('HMGET', job(id), 'attempt', 'worker_id', 'facts')
  if asked[f[2]] then
    answers[#answers + 1] = {id, tonumber(f[1]), f[2], f[3], now - silent_since(id)}
  end
end
return answers
