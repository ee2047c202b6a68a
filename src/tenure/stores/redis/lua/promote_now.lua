#!lua flags=allow-oom
-- scheduled → queued, or waiting if it has limits, at an operator's request. ARGV: ids. Returns their states.
local states = {}
for n, id in ipairs(ARGV) do
  local j = read(id)
  if j and j.state == 'scheduled' then
    leave(id, j)
    if j.run_at > now then -- one that is overdue keeps its place
      j.run_at = now
      redis.call('HSET', job(id), 'run_at', now)
    end
    j.anew = true
    enter(id, j, 'queued')
  end
  states[n] = j and j.state or false
end
return states
