#!lua flags=no-writes
-- Notes whose keys begin alike, in order. ARGV: how they begin, the last key there was (empty: none), how many to look at.
-- Answers the last key looked at, or nothing if there was none; then key and text of each whose time is not over.
local low = ARGV[2] == '' and '[' .. ARGV[1] or '(' .. ARGV[2]
local keys = redis.call('ZRANGEBYLEX', ns .. 'noted', low, '(' .. ARGV[1] .. '\255', 'LIMIT', 0, ARGV[3])
local answer = {keys[#keys] or false}
for _, key in ipairs(keys) do
  local text = note(redis.call('HGET', ns .. 'notes', key))
  if text then answer[#answer + 1], answer[#answer + 2] = key, text:sub(2) end
end
return answer
