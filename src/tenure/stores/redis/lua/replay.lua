#!lua
-- ended → queued, with nothing charged. ARGV: ids. Answers of each: nothing (no such job), its state if it has not ended,
-- who holds its unique key and in which state, or 1.
local answers = {}
for _, id in ipairs(ARGV) do
  local j = read(id)
  local holder = j and j.unique and redis.call('HGET', ns .. 'unique', j.unique)
  if not j then
    answers[#answers + 1] = false
  elseif j.state == 'scheduled' or j.state == 'queued' or j.state == 'processing' then
    answers[#answers + 1] = j.state
  elseif holder then
    answers[#answers + 1] = {holder, redis.call('HGET', job(holder), 'state')}
  else
    leave(id, j)
    j.run_at, j.solo = now, cjson.decode(redis.call('HGET', job(id), 'facts')).isolated == true
    redis.call('HDEL', job(id), 'result', 'error', 'expires_at', 'cancel_reason', 'failures', 'crashes',
      'crashes_total', 'last_activity_at')
    redis.call('HSET', job(id), 'run_at', now, 'solo', j.solo and '1' or '0')
    if j.unique then redis.call('HSET', ns .. 'unique', j.unique, id) end
    enter(id, j, 'queued')
    answers[#answers + 1] = 1
  end
end
return answers
