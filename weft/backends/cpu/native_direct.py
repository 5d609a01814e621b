"""Plans that Python calls as its own built-in functions, as LLVM IR text: the part of the native runtime (`native.py`)
that uses CPython's stable ABI, and reads objects as `backends/direct.py` found that they lie.

Through ctypes a call takes half a microsecond more.
"""
# Tests: tests/core/execute/test_threads.py, tests/backends/cpu/test_llvm.py

from __future__ import annotations

DIRECT = """
%Direct = type { ptr, i64, i64, i64, ptr, ptr, i64, ptr, ptr, ptr, i64, i64, ptr, ptr }
%Source = type { ptr, i64, i64, i64 }
%Route = type { i64, i64, i64, i64, ptr, ptr, ptr, i64, i64, i64 }

declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_CallObject(ptr, ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

; The object in a slot, or null: it is not there, or not of the class.
define internal ptr @weft_slot(ptr %object, i64 %offset, ptr %class) nounwind {
  %at = getelementptr inbounds i8, ptr %object, i64 %offset
  %found = load ptr, ptr %at, align 8
  %missing = icmp eq ptr %found, null
  br i1 %missing, label %none, label %look
look:
  %class_at = getelementptr inbounds i8, ptr %found, i64 8
  %its = load ptr, ptr %class_at, align 8
  %same = icmp eq ptr %its, %class
  br i1 %same, label %some, label %none
some:
  ret ptr %found
none:
  ret ptr null
}

; 1 where so many references to an object are counted. The count is its first four bytes.
define internal i1 @weft_has(ptr %object, i32 %wanted) nounwind {
  %count = load i32, ptr %object, align 4
  %same = icmp eq i32 %count, %wanted
  ret i1 %same
}

; 1 where nobody refers to an object weakly.
define internal i1 @weft_unwatched(ptr %object, i64 %offset) nounwind {
  %at = getelementptr inbounds i8, ptr %object, i64 %offset
  %first = load ptr, ptr %at, align 8
  %none = icmp eq ptr %first, null
  ret i1 %none
}

; The memory that a source comes to, borrowed; null where it has none, or may not be written over.
define internal ptr @weft_memory(ptr %source, ptr %given, ptr %route) nounwind {
entry:
  %fixed = load ptr, ptr %source, align 8
  %index_at = getelementptr inbounds %Source, ptr %source, i64 0, i32 1
  %index = load i64, ptr %index_at, align 8
  %access_at = getelementptr inbounds %Source, ptr %source, i64 0, i32 2
  %access = load i64, ptr %access_at, align 8
  %is_given = icmp eq ptr %fixed, null
  br i1 %is_given, label %take, label %found
take:
  %given_at = getelementptr inbounds ptr, ptr %given, i64 %index
  %taken = load ptr, ptr %given_at, align 8
  br label %found
found:
  %object = phi ptr [ %fixed, %entry ], [ %taken, %take ]
  %is_memory = icmp eq i64 %access, 0
  br i1 %is_memory, label %itself, label %offsets
itself:
  ret ptr %object
offsets:
  %node_offset_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 1
  %storage_offset_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 2
  %memory_offset_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 3
  %value_class_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 4
  %node_class_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 5
  %storage_class_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 6
  %memory_offset = load i64, ptr %memory_offset_at, align 8
  %storage_class = load ptr, ptr %storage_class_at, align 8
  %is_storage = icmp eq i64 %access, 1
  br i1 %is_storage, label %of_storage, label %of_tensor
of_storage:
  %its_class_at = getelementptr inbounds i8, ptr %object, i64 8
  %its_class = load ptr, ptr %its_class_at, align 8
  %plain = icmp eq ptr %its_class, %storage_class
  br i1 %plain, label %read, label %none
of_tensor:
  %value_offset = load i64, ptr %route, align 8
  %value_class = load ptr, ptr %value_class_at, align 8
  %value = call ptr @weft_slot(ptr %object, i64 %value_offset, ptr %value_class)
  %no_value = icmp eq ptr %value, null
  br i1 %no_value, label %none, label %of_value
of_value:
  %node_offset = load i64, ptr %node_offset_at, align 8
  %node_class = load ptr, ptr %node_class_at, align 8
  %node = call ptr @weft_slot(ptr %value, i64 %node_offset, ptr %node_class)
  %no_node = icmp eq ptr %node, null
  br i1 %no_node, label %none, label %of_node
of_node:
  %storage_offset = load i64, ptr %storage_offset_at, align 8
  %stored = call ptr @weft_slot(ptr %node, i64 %storage_offset, ptr %storage_class)
  %no_storage = icmp eq ptr %stored, null
  br i1 %no_storage, label %none, label %may
may:
  %only_read = icmp eq i64 %access, 2
  br i1 %only_read, label %read, label %alone
alone:
  %named_at = getelementptr inbounds %Source, ptr %source, i64 0, i32 3
  %named = load i64, ptr %named_at, align 8
  %is_named = icmp sge i64 %named, 0
  br i1 %is_named, label %compare, label %count
compare:
  %name_at = getelementptr inbounds ptr, ptr %given, i64 %named
  %name = load ptr, ptr %name_at, align 8
  %is_it = icmp eq ptr %name, %stored
  br i1 %is_it, label %count, label %none
count:
  %held_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 9
  %held_64 = load i64, ptr %held_at, align 8
  %held = trunc i64 %held_64 to i32
  %storages = select i1 %is_named, i32 %held, i32 1
  %node_weak_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 7
  %node_weak = load i64, ptr %node_weak_at, align 8
  %storage_weak_at = getelementptr inbounds %Route, ptr %route, i64 0, i32 8
  %storage_weak = load i64, ptr %storage_weak_at, align 8
  %memory_at = getelementptr inbounds i8, ptr %stored, i64 %memory_offset
  %written = load ptr, ptr %memory_at, align 8
  %no_memory = icmp eq ptr %written, null
  br i1 %no_memory, label %none, label %ask
ask:
  %one_value = call i1 @weft_has(ptr %value, i32 1)
  %one_node = call i1 @weft_has(ptr %node, i32 1)
  %one_storage = call i1 @weft_has(ptr %stored, i32 %storages)
  %one_memory = call i1 @weft_has(ptr %written, i32 1)
  %free_node = call i1 @weft_unwatched(ptr %node, i64 %node_weak)
  %free_storage = call i1 @weft_unwatched(ptr %stored, i64 %storage_weak)
  %a = and i1 %one_value, %one_node
  %b = and i1 %one_storage, %one_memory
  %c = and i1 %free_node, %free_storage
  %d = and i1 %a, %b
  %all = and i1 %c, %d
  br i1 %all, label %mine, label %none
mine:
  ret ptr %written
read:
  %from = phi ptr [ %object, %of_storage ], [ %stored, %may ]
  %read_at = getelementptr inbounds i8, ptr %from, i64 %memory_offset
  %memory = load ptr, ptr %read_at, align 8
  ret ptr %memory
none:
  ret ptr null
}

; direct(*given): run a plan that has no variables. True, or False where that cannot be done, and nothing has happened:
; not so many are given, there is no memory, or one that may not be written over, the number that `stamp` gives is
; another, or the process was forked and has no workers yet. self: a tuple, first the address of what is in %Direct.
; Where the interpreter's lock is held during the run, everything from the first look on happens at once for Python.
define ptr @weft_direct(ptr %self, ptr %given, i64 %count_given) nounwind {
entry:
  %number = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %direct = call ptr @PyLong_AsVoidPtr(ptr %number)
  %count_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 1
  %wanted_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 2
  %externals_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 3
  %sources_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 4
  %tail_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 5
  %tail_count_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 6
  %name_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 7
  %true_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 8
  %false_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 9
  %holds_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 10
  %runs_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 11
  %stamp_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 12
  %route_at = getelementptr inbounds %Direct, ptr %direct, i64 0, i32 13
  %instructions = load ptr, ptr %direct, align 8
  %count = load i64, ptr %count_at, align 8
  %wanted = load i64, ptr %wanted_at, align 8
  %externals = load i64, ptr %externals_at, align 8
  %sources = load ptr, ptr %sources_at, align 8
  %tail = load ptr, ptr %tail_at, align 8
  %tail_count = load i64, ptr %tail_count_at, align 8
  %name = load ptr, ptr %name_at, align 8
  %holds = load i64, ptr %holds_at, align 8
  %stamp = load ptr, ptr %stamp_at, align 8
  %route = load ptr, ptr %route_at, align 8
  %fits = icmp eq i64 %count_given, %wanted
  %forked = load i32, ptr @forked, align 4
  %whole = icmp eq i32 %forked, 0
  %ready = and i1 %fits, %whole
  br i1 %ready, label %start, label %refuse
start:
  %stamped = icmp ne ptr %stamp, null
  br i1 %stamped, label %ask, label %begin
ask:
  %now = call ptr @PyObject_CallObject(ptr %stamp, ptr null)
  %no_stamp = icmp eq ptr %now, null
  br i1 %no_stamp, label %clear, label %compare
compare:
  %seen = call ptr @PyLong_AsVoidPtr(ptr %now)
  call void @Py_DecRef(ptr %now)
  %expected_object = load ptr, ptr %given, align 8
  %expected = call ptr @PyLong_AsVoidPtr(ptr %expected_object)
  %unedited = icmp eq ptr %seen, %expected
  br i1 %unedited, label %begin, label %clear
begin:
  %slots = add i64 %externals, %tail_count
  %table = alloca ptr, i64 %slots, align 8
  %memories = alloca ptr, i64 %externals, align 8
  br label %next
next:
  %i = phi i64 [ 0, %begin ], [ %after, %store ]
  %done = icmp eq i64 %i, %externals
  br i1 %done, label %fixed, label %get
get:
  %source = getelementptr inbounds %Source, ptr %sources, i64 %i
  %memory = call ptr @weft_memory(ptr %source, ptr %given, ptr %route)
  %no_memory = icmp eq ptr %memory, null
  br i1 %no_memory, label %refuse, label %address
address:
  %memory_at = getelementptr inbounds ptr, ptr %memories, i64 %i
  store ptr %memory, ptr %memory_at, align 8
  %address_object = call ptr @PyObject_GetAttr(ptr %memory, ptr %name)
  %missing = icmp eq ptr %address_object, null
  br i1 %missing, label %clear, label %convert
convert:
  %converted = call ptr @PyLong_AsVoidPtr(ptr %address_object)
  call void @Py_DecRef(ptr %address_object)
  %null = icmp eq ptr %converted, null
  br i1 %null, label %clear, label %store
store:
  %at = getelementptr inbounds ptr, ptr %table, i64 %i
  store ptr %converted, ptr %at, align 8
  %after = add i64 %i, 1
  br label %next
fixed:
  %rest = getelementptr inbounds ptr, ptr %table, i64 %externals
  %rest_bytes = mul i64 %tail_count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %tail, i64 %rest_bytes, i1 false)
  %held = icmp ne i64 %holds, 0
  br i1 %held, label %run_held, label %keep
run_held:
  call void @weft_run(ptr %table, ptr %instructions, i64 %count, ptr null)
  br label %ran
keep:
  %k = phi i64 [ 0, %fixed ], [ %k_next, %keep_one ]
  %kept = icmp eq i64 %k, %externals
  br i1 %kept, label %run, label %keep_one
keep_one:
  %keep_at = getelementptr inbounds ptr, ptr %memories, i64 %k
  %keep_memory = load ptr, ptr %keep_at, align 8
  call void @Py_IncRef(ptr %keep_memory)
  %k_next = add i64 %k, 1
  br label %keep
run:
  %thread = call ptr @PyEval_SaveThread()
  call void @weft_run(ptr %table, ptr %instructions, i64 %count, ptr null)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %drop
drop:
  %l = phi i64 [ 0, %run ], [ %l_next, %drop_one ]
  %dropped = icmp eq i64 %l, %externals
  br i1 %dropped, label %ran, label %drop_one
drop_one:
  %drop_at = getelementptr inbounds ptr, ptr %memories, i64 %l
  %drop_memory = load ptr, ptr %drop_at, align 8
  call void @Py_DecRef(ptr %drop_memory)
  %l_next = add i64 %l, 1
  br label %drop
ran:
  %runs = load i64, ptr %runs_at, align 8
  %more = add i64 %runs, 1
  store i64 %more, ptr %runs_at, align 8
  %true = load ptr, ptr %true_at, align 8
  call void @Py_IncRef(ptr %true)
  ret ptr %true
clear:
  call void @PyErr_Clear()
  br label %refuse
refuse:
  %false = load ptr, ptr %false_at, align 8
  call void @Py_IncRef(ptr %false)
  ret ptr %false
}
"""
