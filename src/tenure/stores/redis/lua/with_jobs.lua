#!lua flags=allow-oom
-- Queues in which jobs are queued. ARGV: solo, and how many names to look at: if there are more, returns nothing. Of
-- the names that it passes over it forgets those without any job, so that the next call does not meet them.
local solo, found, passed = ARGV[1] == '1', {}, {}
local names = redis.call('SMEMBERS', ns .. 'queues')
if #names > tonumber(ARGV[2]) then return false end
for first = 1, #names, 50 do -- one call for all of them where all or none have jobs
  local lanes, last = {}, math.min(first + 49, #names)
  for n = first, last do lanes[n - first + 1] = lane_key(names[n], solo) end
  local number = redis.call('EXISTS', unpack(lanes))
  for n = first, last do
    local waits = number == #lanes or number > 0 and redis.call('EXISTS', lanes[n - first + 1]) == 1
    if waits then found[#found + 1] = names[n] elseif #passed < 200 then passed[#passed + 1] = names[n] end
  end
end
forget_queues(passed)
return found
