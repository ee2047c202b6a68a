#!lua flags=no-writes
-- Notes with a key prefix, in order. ARGV: the prefix, the last key examined before (empty: none), how many to examine.
-- Returns the last key examined, or nothing if there was none; then key and text of each note that has not expired.
local low = ARGV[2] == '' and '[' .. ARGV[1] or '(' .. ARGV[2]
local keys = redis.call('ZRANGEBYLEX', ns .. 'noted', low, '(' .. ARGV[1] .. '\255', 'LIMIT', 0, ARGV[3])
local answer = {keys[#keys] or false}
for _, key in ipairs(keys) do
  local text = note(redis.call('HGET', ns .. 'notes', key))
  if text then answer[#answer + 1], answer[#answer + 2] = key, text:sub(2) end
end
return answer
