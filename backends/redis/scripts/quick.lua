-- Applies groups that are all of the quick kind: without what the others need, a run
-- of the script costs half.
local p, na = 4, #A
while p <= na do
  quick(p + 5, A[p + 2], A[p + 3], A[p + 4])
  p = A[p]
end
if drew then oracleSave() end
return cmsgpack.pack(out)
