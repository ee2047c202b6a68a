#!lua
-- ended → queued, with nothing charged. ARGV: ids and whether each runs alone by choice. Answers of each: nothing (no such
-- job), its state if it has not ended, who holds its unique key and in which state, or 1.
local answers = {}
for i = 1, #ARGV, 2 do
  local id, j = ARGV[i], read(ARGV[i])
  local holder = j and j.unique and redis.call('HGET', ns .. 'unique', j.unique)
  if not j then
    answers[#answers + 1] = false
  elseif j.state == 'scheduled' or j.state == 'queued' or j.state == 'processing' then
    answers[#answers + 1] = j.state
  elseif holder then
    answers[#answers + 1] = {holder, redis.call('HGET', job(holder), 'state')}
  else
    leave(id, j)
    j.run_at, j.solo = now, ARGV[i + 1] == '1'
    redis.call('HDEL', job(id), 'result', 'error', 'expires_at', 'cancel_reason', 'failures', 'crashes',
      'crashes_total')
    redis.call('HSET', job(id), 'run_at', now, 'solo', ARGV[i + 1])
    if j.unique then redis.call('HSET', ns .. 'unique', j.unique, id) end
    enter(id, j, 'queued')
    answers[#answers + 1] = 1
  end
end
return answers
