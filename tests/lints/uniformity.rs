//! Barriers in uniform control flow. WGSL demands it and browsers check it;
//! naga does not, and some drivers lose the device over it.
//!
//! Conservative: a value is uniform only if it is computed from constants,
//! uniforms, read-only storage, the workgroup's number and results of
//! `workgroupUniformLoad`, and stored in uniform control flow.

use std::collections::HashSet;

use naga::{
    AddressSpace, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module,
    Statement, StorageAccess,
};

/// Lines (1-based, of `text`) of barriers and uniform loads that are not
/// provably in uniform control flow.
pub fn violations(module: &Module, text: &str) -> Vec<u32> {
    let mut lines = Vec::new();
    for entry in &module.entry_points {
        let is_uniform = |argument: &naga::FunctionArgument| {
            let uniform = [BuiltIn::WorkGroupId, BuiltIn::NumWorkGroups];
            matches!(argument.binding, Some(Binding::BuiltIn(b)) if uniform.contains(&b))
        };
        let arguments = entry.function.arguments.iter().map(is_uniform).collect();
        let mut walk = Walk::new(module, text, &entry.function, arguments);
        walk.settle(true);
        lines.append(&mut walk.lines);
    }
    lines.sort_unstable();
    lines.dedup();
    lines
}

struct Walk<'a> {
    module: &'a Module,
    text: &'a str,
    function: &'a Function,
    arguments: Vec<bool>,
    /// Variables that may differ between invocations; only grows.
    varying: HashSet<Handle<LocalVariable>>,
    /// Results of calls that may; only grows.
    varying_results: HashSet<Handle<Expression>>,
    varying_return: bool,
    /// An invocation may have returned while others go on.
    left: bool,
    lines: Vec<u32>,
}

impl<'a> Walk<'a> {
    fn new(
        module: &'a Module,
        text: &'a str,
        function: &'a Function,
        arguments: Vec<bool>,
    ) -> Self {
        Walk {
            module,
            text,
            function,
            arguments,
            varying: HashSet::new(),
            varying_results: HashSet::new(),
            varying_return: false,
            left: false,
            lines: Vec::new(),
        }
    }

    /// Walks until nothing more is found to vary.
    fn settle(&mut self, uniform: bool) {
        loop {
            let before = (self.varying.len(), self.varying_results.len());
            self.left = false;
            self.lines.clear();
            self.block(&self.function.body, uniform);
            if before == (self.varying.len(), self.varying_results.len()) {
                return;
            }
        }
    }

    fn is_uniform(&self, handle: Handle<Expression>) -> bool {
        use Expression as E;
        let all = |handles: &[Handle<Expression>]| handles.iter().all(|&h| self.is_uniform(h));
        match self.function.expressions[handle] {
            E::Literal(_) | E::Constant(_) | E::ZeroValue(_) | E::ArrayLength(_) => true,
            E::WorkGroupUniformLoadResult { .. } => true,
            E::FunctionArgument(index) => self.arguments[index as usize],
            E::GlobalVariable(global) => match self.module.global_variables[global].space {
                AddressSpace::Uniform => true,
                AddressSpace::Storage { access } => !access.contains(StorageAccess::STORE),
                _ => false,
            },
            E::LocalVariable(variable) => !self.varying.contains(&variable),
            E::CallResult(_) => !self.varying_results.contains(&handle),
            E::Load { pointer } => self.is_uniform(pointer),
            E::Access { base, index } => all(&[base, index]),
            E::AccessIndex { base, .. } => self.is_uniform(base),
            E::Splat { value, .. } => self.is_uniform(value),
            E::Swizzle { vector, .. } => self.is_uniform(vector),
            E::Compose { ref components, .. } => all(components),
            E::Unary { expr, .. } | E::As { expr, .. } => self.is_uniform(expr),
            E::Binary { left, right, .. } => all(&[left, right]),
            E::Select {
                condition,
                accept,
                reject,
            } => all(&[condition, accept, reject]),
            E::Relational { argument, .. } => self.is_uniform(argument),
            E::Math {
                arg,
                arg1,
                arg2,
                arg3,
                ..
            } => {
                self.is_uniform(arg)
                    && [arg1, arg2, arg3]
                        .into_iter()
                        .flatten()
                        .all(|h| self.is_uniform(h))
            }
            _ => false,
        }
    }

    /// The variable that a pointer leads into.
    fn root(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(variable) => Some(variable),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                self.root(base)
            }
            _ => None,
        }
    }

    fn barrier(&mut self, uniform: bool, span: naga::Span) {
        if !uniform || self.left {
            self.lines.push(span.location(self.text).line_number);
        }
    }

    fn block(&mut self, block: &'a Block, uniform: bool) {
        for (statement, span) in block.span_iter() {
            let uniform = uniform && !self.left;
            match statement {
                Statement::Block(inner) => self.block(inner, uniform),
                Statement::If {
                    condition,
                    accept,
                    reject,
                } => {
                    let inside = uniform && self.is_uniform(*condition);
                    self.block(accept, inside);
                    self.block(reject, inside);
                }
                Statement::Switch { selector, cases } => {
                    let inside = uniform && self.is_uniform(*selector);
                    for case in cases {
                        self.block(&case.body, inside);
                    }
                }
                Statement::Loop {
                    body,
                    continuing,
                    break_if,
                } => {
                    let leaves = break_if.is_none_or(|b| self.is_uniform(b));
                    let inside = uniform && leaves && !self.parts_ways(body, true);
                    self.block(body, inside);
                    self.block(continuing, inside);
                }
                Statement::Return { value } => {
                    let value = value.is_none_or(|v| self.is_uniform(v));
                    self.varying_return |= !uniform || !value;
                    self.left |= !uniform;
                }
                Statement::ControlBarrier(_) => self.barrier(uniform, *span),
                Statement::WorkGroupUniformLoad { .. } => self.barrier(uniform, *span),
                Statement::Store { pointer, value } => {
                    let varies = !uniform || !self.is_uniform(*value);
                    let indexed = !self.is_uniform(*pointer);
                    if let Some(variable) = self.root(*pointer)
                        && (varies || indexed)
                    {
                        self.varying.insert(variable);
                    }
                }
                Statement::Call {
                    function,
                    arguments,
                    result,
                } => {
                    let given = arguments.iter().map(|&a| self.is_uniform(a)).collect();
                    let callee = &self.module.functions[*function];
                    let mut walk = Walk::new(self.module, self.text, callee, given);
                    walk.settle(uniform);
                    self.lines.append(&mut walk.lines);
                    // What a callee writes through a pointer is not followed.
                    let pairs = arguments.iter().zip(&callee.arguments);
                    let pointers = pairs.filter(|(_, formal)| self.is_pointer(formal.ty));
                    let written: Vec<_> = pointers.filter_map(|(&a, _)| self.root(a)).collect();
                    self.varying.extend(written);
                    if let Some(result) = result
                        && (walk.varying_return || !uniform)
                    {
                        self.varying_results.insert(*result);
                    }
                }
                _ => {}
            }
        }
    }

    fn is_pointer(&self, ty: Handle<naga::Type>) -> bool {
        matches!(self.module.types[ty].inner, naga::TypeInner::Pointer { .. })
    }

    /// Whether invocations may leave or restart a loop at different times.
    fn parts_ways(&self, block: &Block, uniform: bool) -> bool {
        block.iter().any(|statement| match statement {
            Statement::Break | Statement::Continue | Statement::Return { .. } => !uniform,
            Statement::Block(inner) => self.parts_ways(inner, uniform),
            Statement::If {
                condition,
                accept,
                reject,
            } => {
                let inside = uniform && self.is_uniform(*condition);
                self.parts_ways(accept, inside) || self.parts_ways(reject, inside)
            }
            Statement::Switch { selector, cases } => {
                let inside = uniform && self.is_uniform(*selector);
                cases.iter().any(|case| self.parts_ways(&case.body, inside))
            }
            // Its breaks are its own; its returns are not.
            Statement::Loop { body, .. } => self.returns(body),
            _ => false,
        })
    }

    fn returns(&self, block: &Block) -> bool {
        block.iter().any(|statement| match statement {
            Statement::Return { .. } => true,
            Statement::Block(inner) | Statement::Loop { body: inner, .. } => self.returns(inner),
            Statement::If { accept, reject, .. } => self.returns(accept) || self.returns(reject),
            Statement::Switch { cases, .. } => cases.iter().any(|case| self.returns(&case.body)),
            _ => false,
        })
    }
}
