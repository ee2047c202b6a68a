#!lua flags=allow-oom
-- scheduled → queued, or waiting if it has limits, at an operator's request. ARGV: ids. Returns their states.
local states = {}
for n, id in ipairs(ARGV) do
  local j = read(id)
  if j and j.state == 'scheduled' then
    leave(id, j)
    j.run_at, j.anew = now, true
    redis.call('HSET', job(id), 'run_at', now)
    enter(id, j, 'queued')
  end
  states[n] = j and j.state or false
end
return states
