//! The description of flows that can be started, made from the command line's own.

use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::commands::{COMMANDS, Command, CommandOption, Language};
use super::flow::FlowId;

/// [`super::flow::NewFlow`] as the interface describes it, in whose place [`new_flow`] comes.
#[derive(ToSchema)]
#[schema(as = NewFlow)]
pub struct NewFlowSchema {}

/// The name of that schema.
pub const NEW_FLOW: &str = "NewFlow";

/// A command each with its options.
pub fn new_flow(language: Language) -> RefOr<Schema> {
    let description = "A command with its options, as on the command line: numbers with units are text (`512M`, `64MiB`, `10min`), what can be given several times is a list, and what has no value is true or false.";
    let item = |all: OneOfBuilder, command| all.item(of(command, language));
    let each = COMMANDS.iter().fold(OneOfBuilder::new(), item);
    RefOr::T(Schema::OneOf(each.description(Some(description)).build()))
}

fn of(command: &Command, language: Language) -> RefOr<Schema> {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let host = "The host that it is meant for: one of a session's, or the agent's own";
    let mut object = ObjectBuilder::new()
        .title(Some(command.name))
        .property("id", FlowId::schema())
        .required("id")
        .property("host", text().description(Some(host)).build())
        .property("command", text().enum_values(Some([command.name])).build())
        .required("command")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    for option in command.options(language) {
        if option.is_required {
            object = object.required(&option.name);
        }
        object = object.property(&option.name, of_option(&option));
    }
    object.build().into()
}

fn of_option(option: &CommandOption) -> RefOr<Schema> {
    let help = option.help.clone();
    if option.is_flag {
        let flag = ObjectBuilder::new().schema_type(Type::Boolean);
        return flag.description(help).build().into();
    }
    let value = || match option.choices.is_empty() {
        true => {
            let kinds = SchemaType::from_iter([Type::String, Type::Number]);
            ObjectBuilder::new().schema_type(kinds)
        }
        false => ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(option.choices.clone())),
    };
    if !option.is_list {
        return value().description(help).build().into();
    }
    let list = ArrayBuilder::new().items(value().build());
    let several = OneOfBuilder::new().item(value().build()).item(list.build());
    RefOr::T(Schema::OneOf(several.description(help).build()))
}
