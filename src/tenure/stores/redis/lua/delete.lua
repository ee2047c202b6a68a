#!lua flags=allow-oom
-- any state but processing → deleted. ARGV: ids. Returns the states they were in; or a live job, and whether that waits
-- for it, or is gathered by it.
local states = {}
for n, id in ipairs(ARGV) do
  local j = read(id)
  local child = j and j.linked and live_child(id)
  states[n] = j and j.state or false
  local gathered = j and not child and live_gathered(id)
  if (child or gathered) and j.state ~= 'processing' then
    states[n] = child and {child, 'waits'} or {gathered, 'gathered'}
  elseif j and j.state ~= 'processing' then
    leave(id, j)
    if j.unique and redis.call('HGET', ns .. 'unique', j.unique) == id then redis.call('HDEL', ns .. 'unique', j.unique) end
    forget(id)
  end
end
return states
