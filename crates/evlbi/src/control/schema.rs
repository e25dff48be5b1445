//! The description of flows that can be started, made from the command line's own.

use clap::Arg;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::commands::{COMMANDS, Command, is_flag, is_list, name};
use super::flow::FlowId;

/// [`super::flow::NewFlow`] as the interface describes it: a command each with its options.
pub struct NewFlowSchema;

impl ToSchema for NewFlowSchema {
    fn name() -> std::borrow::Cow<'static, str> {
        "NewFlow".into()
    }
}

impl PartialSchema for NewFlowSchema {
    fn schema() -> RefOr<Schema> {
        let description = "A command with its options, as on the command line: numbers with units are text (`512M`, `64MiB`, `10min`), what can be given several times is a list, and what has no value is true or false.";
        let each = COMMANDS
            .iter()
            .fold(OneOfBuilder::new(), |all, command| all.item(of(command)));
        RefOr::T(Schema::OneOf(each.description(Some(description)).build()))
    }
}

fn of(command: &Command) -> RefOr<Schema> {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let mut object = ObjectBuilder::new()
        .title(Some(command.name))
        .property("id", FlowId::schema())
        .required("id")
        .property(
            "host",
            text()
                .description(Some(
                    "The host that it is meant for: one of a session's, or the agent's own",
                ))
                .build(),
        )
        .property("command", text().enum_values(Some([command.name])).build())
        .required("command")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    for option in command.options() {
        let name = name(&option);
        if option.is_required_set() {
            object = object.required(&name);
        }
        object = object.property(name, of_option(&option));
    }
    object.build().into()
}

fn of_option(option: &Arg) -> RefOr<Schema> {
    let help = option.get_help().map(ToString::to_string);
    if is_flag(option) {
        let flag = ObjectBuilder::new().schema_type(Type::Boolean);
        return flag.description(help).build().into();
    }
    let value = || {
        let choices = option.get_possible_values();
        let names: Vec<String> = choices
            .iter()
            .map(|choice| choice.get_name().to_owned())
            .collect();
        let kinds = SchemaType::from_iter([Type::String, Type::Number]);
        match names.is_empty() {
            true => ObjectBuilder::new().schema_type(kinds),
            false => ObjectBuilder::new()
                .schema_type(Type::String)
                .enum_values(Some(names)),
        }
    };
    if !is_list(option) {
        return value().description(help).build().into();
    }
    let list = ArrayBuilder::new().items(value().build());
    let several = OneOfBuilder::new().item(value().build()).item(list.build());
    RefOr::T(Schema::OneOf(several.description(help).build()))
}
