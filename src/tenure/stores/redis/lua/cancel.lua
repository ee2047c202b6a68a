#!lua flags=allow-oom
-- scheduled, queued → cancelled; processing: asked. ARGV: reason, then ids. Answers their states.
local states = {}
for n = 2, #ARGV do
  local id = ARGV[n]
  local j = read(id)
  if j and j.state == 'processing' then
    redis.call('HSETNX', job(id), 'cancel_reason', ARGV[1])
    ring('cancel', j.queue)
  elseif j and (j.state == 'scheduled' or j.state == 'queued') then
    leave(id, j)
    redis.call('HSET', job(id), 'cancel_reason', ARGV[1], 'error', ARGV[1])
    enter(id, j, 'cancelled')
  end
  states[n - 1] = j and j.state or false
end
return states
