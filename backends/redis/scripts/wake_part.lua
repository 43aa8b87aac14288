-- It comes last, because a user may lack the permission.
if woken then
  -- Without slots it means any row.
  for name, slots in pairs(woken) do
    call('PUBLISH', channel, #slots > 1024 and name or name .. table.concat(slots))
  end
end
