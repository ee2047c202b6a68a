#!lua flags=no-writes
-- Jobs of a flow. ARGV: its id, the last job before (empty: none), how many. Returns whether there are more, then per job
-- its id, facts, queue and state; without those that are gone.
local low = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local ids, answers = redis.call('ZRANGEBYLEX', ns .. 'members:' .. ARGV[1], low, '+', 'LIMIT', 0, ARGV[3]), {}
answers[1] = #ids == tonumber(ARGV[3]) and ids[#ids] or ''
for _, id in ipairs(ids) do
  local f = redis.call('HMGET', job(id), 'facts', 'queue', 'state')
  if f[3] then answers[#answers + 1] = {id, f[1], f[2], f[3]} end
end
return answers
