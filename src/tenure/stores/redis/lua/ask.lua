#!lua flags=allow-oom
-- Store an ask for each of these jobs, from its beginning. ARGV: their ids.
for _, id in ipairs(ARGV) do ask_anew(id) end
