#!lua flags=no-writes
-- Which of these commands this user may not run on keys of this namespace. ARGV: commands.
local missing, any = {}, ns .. 'any'
for _, name in ipairs(ARGV) do
  if not redis.acl_check_cmd(name, any, any, any) then missing[#missing + 1] = name end
end
return missing
